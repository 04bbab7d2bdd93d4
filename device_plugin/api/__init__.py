"""Generated protocol stubs; never edited by hand."""
