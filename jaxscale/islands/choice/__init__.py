"""Choice among modes of joining islands."""
