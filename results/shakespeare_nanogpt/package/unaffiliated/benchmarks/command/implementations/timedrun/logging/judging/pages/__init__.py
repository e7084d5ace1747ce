"""Results as tables, figures, files and HTML pages."""
