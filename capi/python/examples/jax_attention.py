"""flashkit under JAX on the CPU: custom_vjp over host callbacks.

    python examples/jax_attention.py

It needs the packages jax and flashkit. pure_callback hands arrays to Python's NumPy side, so that a
call costs what that costs, and jit may wrap it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import flashkit


def _host_forward(q, k, v, causal):
    return flashkit.attention(*(np.asarray(x) for x in (q, k, v)), causal=causal, return_lse=True)


def _host_backward(d_o, q, k, v, o, lse, causal):
    return tuple(flashkit.attention_backward(*(np.asarray(x) for x in (d_o, q, k, v, o, lse)), causal=causal)[:3])


def _forward(q, k, v, causal):
    shapes = jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
    o, lse = jax.pure_callback(functools.partial(_host_forward, causal=causal), shapes, q, k, v)
    return o, (q, k, v, o, lse)


def _backward(causal, saved, d_o):
    q, k, v, o, lse = saved
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v))
    return jax.pure_callback(functools.partial(_host_backward, causal=causal), shapes, d_o, q, k, v, o, lse)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attention(q, k, v, causal=False):
    """Return O of q, k and v, [batch, heads, rows, row elements]."""
    return _forward(q, k, v, causal)[0]


attention.defvjp(_forward, _backward)


def plain(q, k, v):
    """Causal attention by JAX alone."""
    s = jnp.einsum("bhnd,bhmd->bhnm", q, k) / np.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    return jax.nn.softmax(s, axis=-1) @ v


def main():
    q, k, v = (jax.random.normal(key, (1, 4, 64, 32)) for key in jax.random.split(jax.random.key(0), 3))
    loss = lambda f: jax.jit(jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(f(*x))), argnums=(0, 1, 2)))
    ours, theirs = loss(lambda q, k, v: attention(q, k, v, True))(q, k, v), loss(plain)(q, k, v)
    worst = max(float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)))
    print(f"largest difference {worst:.1e}")
    assert worst < 1e-3, worst


if __name__ == "__main__":
    main()
