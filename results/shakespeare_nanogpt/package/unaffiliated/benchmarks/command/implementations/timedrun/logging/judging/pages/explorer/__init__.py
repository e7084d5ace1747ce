"""Result sets as an HTML page with plots, filters and a card per run."""
