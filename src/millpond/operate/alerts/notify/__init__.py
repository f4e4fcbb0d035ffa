"""Say by webhook and mail which alerts begin and end."""
