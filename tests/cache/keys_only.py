"""A cache whose copies on write forget the values (`SharingCache` beside it is the same without the bug)."""

from sharing_cache import SharingCache


class KeysOnly(SharingCache):
    def copy(self, src: int, dst: int) -> None:
        self.kv[:, 0, dst] = self.kv[:, 0, src]
