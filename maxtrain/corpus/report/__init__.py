"""What a built dataset can be asked: a document's fate, two datasets compared, samples of a rule, pages."""
