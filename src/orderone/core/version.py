"""The version of the library, for all packages."""

VERSION = "0.1.0"
