"""Gandiva_fair as Fairlot first had it, kept as it was so that rounds which it decided can be drawn again."""
