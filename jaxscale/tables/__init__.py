"""Tables with a schema: columns, reader with checks of names and cells, table, writer."""
