"""The commands that read what runs have left: lists, tables, plots, reports and audit logs."""
