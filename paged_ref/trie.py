"""The prefix cache of the model: a trie of tokens, not a hash.

The KV of a token depends on every token before it, so what a slot holds is a whole *run*: the token and the prefix
behind it. Runs are interned as nodes of a trie; two runs are equal exactly when their nodes are the same integer.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_PARENT = -1


class TokenRuns:
    """Every token run of one case, interned.

    >>> runs = TokenRuns()
    >>> a, b = runs.extend(runs.root(), [7, 8]), runs.extend(runs.root(), [9, 8])
    >>> a[1] == b[1], runs.tokens(a[1]), runs.tokens(b[1])
    (False, [7, 8], [9, 8])
    >>> runs.extend(runs.root("adapter 2"), [7, 8]) == a  # another salt, another run
    False
    """

    def __init__(self) -> None:
        self._roots: dict[str | None, int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self._parent: list[int] = []
        self._token: list[int] = []

    def root(self, salt: str | None = None) -> int:
        """The empty run under that salt (adapter, image, tenant: whatever else the KV depends on)."""
        if salt not in self._roots:
            self._roots[salt] = self._new(NO_PARENT, len(self._roots))
        return self._roots[salt]

    def extend(self, run: int, tokens: Iterable[int]) -> list[int]:
        """The runs that end at each of `tokens`, continued from `run`."""
        children, nodes = self._children, []
        for token in tokens:
            key = (run, token)
            found = children.get(key)
            if found is None:
                found = children[key] = self._new(run, token)
            run = found
            nodes.append(run)
        return nodes

    def tokens(self, run: int) -> list[int]:
        """The tokens of a run, first to last."""
        tokens = []
        while self._parent[run] != NO_PARENT:
            tokens.append(self._token[run])
            run = self._parent[run]
        return tokens[::-1]

    def parent(self, run: int) -> int:
        """The run without its last token."""
        return self._parent[run]

    def length(self, run: int) -> int:
        """Number of tokens of a run."""
        return len(self.tokens(run))

    def salt(self, run: int) -> str | None:
        """The salt that a run was computed under."""
        while self._parent[run] != NO_PARENT:
            run = self._parent[run]
        return list(self._roots)[self._token[run]]

    def _new(self, parent: int, token: int) -> int:
        self._parent.append(parent)
        self._token.append(token)
        return len(self._parent) - 1
