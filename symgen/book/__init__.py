"""The book: chapters become executed pages, and pages become a site."""
