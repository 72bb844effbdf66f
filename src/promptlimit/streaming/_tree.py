"""The binary tree over blocks: the same pairs are merged whatever the order they come in."""

from collections.abc import Mapping

import numpy as np

from promptlimit.streaming._sums import TiltedSums, merged, stacked

Place = tuple[int, int]
"""A node: its level, blocks being level 0, and its number along that level."""


class BlockTree:
    """Sums over the blocks that have been added, each once, as few nodes as there can be.

    Node k of a level covers nodes 2k and 2k + 1 of the level below, and is made as soon as both
    are there. Which sums are added to which depends on the blocks' numbers alone.

    Attributes:
        nodes: the sums at each place that has no parent yet.
    """

    def __init__(self, nodes: Mapping[Place, TiltedSums] | None = None):
        self.nodes: dict[Place, TiltedSums] = dict(nodes or {})

    def add(self, block: int, sums: TiltedSums) -> None:
        """Add the sums over a block."""
        level = 0
        while (other := self.nodes.pop((level, block ^ 1), None)) is not None:
            sums = merged(other, sums) if block % 2 else merged(sums, other)
            level, block = level + 1, block // 2
        self.nodes[level, block] = sums

    def total(self, last: TiltedSums) -> TiltedSums:
        """Return the sums over all blocks, 0 to n - 1, and over `last`, the part of block n.

        The same bits as the root of the tree has when later blocks hold no tokens.
        """
        in_order = sorted(self.nodes, key=lambda place: place[1] << place[0], reverse=True)
        for place in in_order:
            last = merged(self.nodes[place], last)
        return last

    def packed(self) -> dict[str, np.ndarray]:
        """Return the tree as plain arrays, for a checkpoint."""
        places = sorted(self.nodes)
        columns = stacked([self.nodes[place] for place in places])
        arrays = {f"node.{name}": column for name, column in columns.items()}
        return {"places": np.array(places, np.int64).reshape(-1, 2), **arrays}

    @staticmethod
    def unpacked(arrays: Mapping[str, np.ndarray]) -> "BlockTree":
        """Return the tree that `packed` made arrays of."""
        places = [(level, number) for level, number in arrays["places"].astype(np.int64).tolist()]
        return BlockTree(
            {
                place: TiltedSums(*(arrays[f"node.{name}"][i] for name in TiltedSums._fields))
                for i, place in enumerate(places)
            }
        )
