"""What every run of the loop leaves: append-only records, and the views of them."""
