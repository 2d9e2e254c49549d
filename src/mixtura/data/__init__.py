"""What a user passes becomes tensors: tables, sequences, schemas and labels.

What `mixtura.runtime` reads rows and units by needs neither PyTorch nor scikit-learn: `schema`,
`columns`, `matrix`, `scaling`, `curves`, `atoms` and `indicators`.
"""
