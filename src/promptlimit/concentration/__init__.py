"""How fast a prompt becomes infinite: gaps, their rate, proved bounds, and the length you need."""

from promptlimit.concentration._exponent import gap_exponent as gap_exponent
from promptlimit.concentration._fit_rate import fit_rate as fit_rate
from promptlimit.concentration._gaps import gradient_gap as gradient_gap
from promptlimit.concentration._gaps import output_gap as output_gap
from promptlimit.concentration._required_length import required_length as required_length
from promptlimit.concentration._sub_gaussian import sub_gaussian_constant as sub_gaussian_constant
