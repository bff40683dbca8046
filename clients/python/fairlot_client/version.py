"""The version of the client and the command line."""

VERSION = "0.1.0"
