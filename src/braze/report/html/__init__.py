"""Parts of the page of a trace: from lines of its files to data of the template."""
