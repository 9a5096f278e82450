import pytest
import torch

from memory.zoo import normal
from vbmem.memory import MixtureMemory


@pytest.mark.filterwarnings(  # of the compiler itself, which also gives advice
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="strides are padded on a GPU only")
def test_gradients_of_rows_whose_strides_a_compiler_would_pad():
    """Five faces an episode, half of the code in memory: 4 x 3 x 100 numbers are no multiple of 32."""
    codes = normal(200, 5, 100).float().cuda()
    noise_var = torch.full((100,), 0.5, device="cuda")

    def gradients(*, compiled):
        inputs = [tensor.clone().requires_grad_() for tensor in (codes, noise_var)]
        memory = MixtureMemory(100, rows=2, clusters=4).with_prior(noise_var=inputs[1])
        if compiled:
            memory.compile()
        torch.manual_seed(0)  # of the rows it starts with
        state, addresses = memory.write(inputs[0], 3, "ward")
        memory.bound(inputs[0], state, addresses).total.sum().backward()
        return [tensor.grad for tensor in inputs]

    torch.testing.assert_close(gradients(compiled=True), gradients(compiled=False), rtol=1e-3, atol=1e-3)
