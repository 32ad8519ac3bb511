"""MySQL and MariaDB servers: connections, logins, and the programs that are run against them."""
