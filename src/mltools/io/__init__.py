"""Files: rows, records, tensors, provenance; all opening and all writing happens here."""
