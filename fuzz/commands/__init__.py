"""The commands of `pagefault`, a file each. `fuzz.cli` lists them."""
