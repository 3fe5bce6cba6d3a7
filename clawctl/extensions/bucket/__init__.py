"""A run in an object store: S3, Google Cloud Storage or Azure Blob Storage, with a local folder on each host."""
