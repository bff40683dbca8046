"""What the lists of the portal share: columns that users choose and sort by, counts, and chips."""
