"""The prefix cache of the model: a trie of tokens, not a hash.

The KV of a token depends on every token before it, so what a slot holds is a whole *run*: the token and the prefix
behind it. Runs are interned as nodes of a trie; two runs are equal exactly when their nodes are the same integer.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_PARENT = -1
MOST_SHOWN = 24
"""Tokens of a prefix that are printed; of a longer one the first and the last."""


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
        self._unused: list[int] = []

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

    def describe(self, run: int) -> str:
        """A run in words: its last token and the prefix behind it, a long one cut in the middle; the salt if there is one.

        >>> runs = TokenRuns()
        >>> runs.describe(runs.extend(runs.root("a"), [7, 8])[-1])
        "token 8 behind [7] under salt 'a'"
        """
        *prefix, token = self.tokens(run)
        text = str(prefix)
        if len(prefix) > MOST_SHOWN:
            half = MOST_SHOWN // 2
            text = f"{str(prefix[:half])[:-1]}, ... ({len(prefix)} in all) ..., {str(prefix[-half:])[1:]}"
        salt = self.salt(run)
        return f"token {token} behind {text}" + (f" under salt {salt!r}" if salt is not None else "")

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

    def __len__(self) -> int:
        """Runs that are interned, the empty ones included."""
        return len(self._parent) - len(self._unused)

    def prune(self, keep: Iterable[int]) -> None:
        """Forget every run but `keep` and the prefixes of those; a forgotten number may stand for another run later.

        For long histories: what no slot holds and no live sequence needs is never asked for again. Negative numbers in
        `keep` are passed over.
        """
        parents = self._parent
        alive = set(self._roots.values())
        for last in keep:
            run = last
            while run >= 0 and run not in alive:
                alive.add(run)
                run = parents[run]
        dead = [run for run in self._children.values() if run not in alive]
        self._children = {key: run for key, run in self._children.items() if run in alive}
        self._unused += dead

    def _new(self, parent: int, token: int) -> int:
        if self._unused:
            run = self._unused.pop()
            self._parent[run], self._token[run] = parent, token
            return run
        self._parent.append(parent)
        self._token.append(token)
        return len(self._parent) - 1
