-- What the trial's source has in it, and what it does: an order each second.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'binlog2s3'@'%';

CREATE DATABASE shop;
CREATE TABLE shop.orders (
    id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
    placed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    amount DECIMAL(10, 2) NOT NULL
);
INSERT INTO shop.orders (amount) VALUES (19.90), (5.00), (249.00);
CREATE EVENT shop.sale ON SCHEDULE EVERY 1 SECOND
    DO INSERT INTO shop.orders (amount) VALUES (ROUND(RAND() * 100, 2));
