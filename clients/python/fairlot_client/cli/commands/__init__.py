"""The commands of `fairlot`, one module a subject."""
