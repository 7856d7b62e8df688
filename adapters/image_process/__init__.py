"""Images and PDF files read in processes of their own: both ends of the pipes between the server and a worker."""
