"""Controls: how many rows of each request a verification gets, and with them how much is drafted."""
