"""The command line `fairlot`."""
