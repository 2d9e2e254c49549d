# What mixtura uses of scikit-learn, which has no types of its own. Modules that are not here
# (the models that papers compare with) are untyped.
