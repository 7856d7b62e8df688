"""PDF files to text, by pypdf."""
