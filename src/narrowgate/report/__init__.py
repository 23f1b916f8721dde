"""What people look at: the page, the tables in the terminal, TensorBoard files. No torch here."""
