"""Sends the changes of a table elsewhere: Kafka, files, databases, webhooks."""
