"""placeholder until merged"""


def log_densities(codes, row_mean, row_cov, noise_var, noise_scale, located):
    raise NotImplementedError
