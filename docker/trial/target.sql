-- A target must have no transactions of its own: not those either that made it.
RESET BINARY LOGS AND GTIDS;
