"""The explorer: result sets as one HTML page with plots, filters, a card per run and a sortable table."""
