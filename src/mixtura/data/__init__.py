"""What a user passes becomes tensors: tables, sequences, schemas and labels.

`schema`, `columns`, `matrix` and `indicators` need neither PyTorch nor scikit-learn, and
`mixtura.runtime` reads tables by them.
"""
