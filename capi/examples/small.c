/*
 * The smaller interface: dense float32 tensors Q, K, V and O of the same shape.
 *
 *     cc small.c $(pkg-config --cflags --libs flashkit) -o small && ./small
 */
#include <stdio.h>

#include <flash_attention.h>

int main(void)
{
	enum { HEADS = 4, LEN = 128, DIM = 64, SIZE = HEADS * LEN * DIM };
	static float Q[SIZE], K[SIZE], V[SIZE], O[SIZE], dO[SIZE], dQ[SIZE], dK[SIZE], dV[SIZE];
	for (int i = 0; i < SIZE; i++) {
		Q[i] = (float)(i % 13) / 13;
		K[i] = (float)(i % 7) / 7;
		V[i] = (float)(i % 5);
		dO[i] = 1;
	}
	FlashAttentionParams p = {.batch = 1, .heads = HEADS, .seq_len = LEN, .head_dim = DIM, .causal = 1};
	int code = flash_attention_cpu_forward(Q, K, V, O, &p);
	if (code == FLASH_ATTENTION_OK)
		code = flash_attention_cpu_backward(Q, K, V, dO, dQ, dK, dV, &p);
	if (code != FLASH_ATTENTION_OK)
		return fprintf(stderr, "error %d\n", code), 1;
	printf("O = %g %g %g ...; dV of the last key = %g\n", O[0], O[1], O[2], dV[(LEN - 1) * DIM]);
	return 0;
}
