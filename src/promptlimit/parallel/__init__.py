"""Computation on one device, on several devices of a machine or on several hosts."""

from promptlimit.parallel._devices import DeviceGroup as DeviceGroup
from promptlimit.parallel._devices import active_devices as active_devices
from promptlimit.parallel._devices import alone as alone
from promptlimit.parallel._devices import use_devices as use_devices
from promptlimit.parallel._hosts import join as join
from promptlimit.parallel._hosts import leave_at_exit as leave_at_exit
from promptlimit.parallel._programs import Program as Program
from promptlimit.parallel._programs import agreed as agreed
from promptlimit.parallel._programs import collective_sums as collective_sums
from promptlimit.parallel._programs import from_writer as from_writer
from promptlimit.parallel._programs import in_chunks as in_chunks
from promptlimit.parallel._programs import launch as launch
from promptlimit.parallel._programs import run_on_devices as run_on_devices
