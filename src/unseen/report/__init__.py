"""Results as people read them: tables in the paper's layout, and one HTML file with plots."""
