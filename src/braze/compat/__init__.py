"""Every private torch or CPython name that Braze uses, and the tables of version differences."""
