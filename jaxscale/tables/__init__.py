"""Tables of every kind: a schema of columns, one reader with its checks of names and cells, one table, one writer."""
