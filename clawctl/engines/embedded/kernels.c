// Rows times a matrix of bfloat16 numbers, in float32. `kernels.py` says how the matrix lies in memory.
#include <immintrin.h>

enum { ROWS = 6, OUTPUTS = 4, LANES = 16 };   // sums in registers: ROWS * OUTPUTS of 32
enum { TOGETHER = 96 };                       // rows that stay in the cache while a matrix is read
enum { AHEAD = 64 };                          // vectors of weights between the one that is used and the one that is fetched

static inline __attribute__((always_inline)) void
tile(int rows, const __m512i *weights, const float *x, long inputs, float *out, long outputs, int fetch)
{
    __m512 sums[ROWS][OUTPUTS];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < OUTPUTS; o++)
            sums[r][o] = _mm512_setzero_ps();
    for (long i = 0; i < inputs; i += 2 * LANES, weights += OUTPUTS)
        for (int half = 0; half < 2; half++) {
            __m512 wide[OUTPUTS];
            for (int o = 0; o < OUTPUTS; o++) {
                if (fetch && half == 0)
                    _mm_prefetch((const char *)(weights + AHEAD + o), _MM_HINT_T0);
                wide[o] = _mm512_castsi512_ps(
                    half ? _mm512_and_si512(weights[o], _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(weights[o], 16));
            }
            for (int r = 0; r < rows; r++) {
                __m512 values = _mm512_loadu_ps(x + r * inputs + i + half * LANES);
                __asm__("" : "+v"(values));   // keeps it in a register for all outputs
                for (int o = 0; o < OUTPUTS; o++)
                    sums[r][o] = _mm512_fmadd_ps(values, wide[o], sums[r][o]);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < OUTPUTS; o++)
            out[r * outputs + o] = _mm512_reduce_add_ps(sums[r][o]);
}

void multiply(const __m512i *weights, const float *x, float *out, long rows, long inputs, long outputs, int threads)
{
    for (long first = 0; first < rows; first += TOGETHER) {
        long end = first + TOGETHER < rows ? first + TOGETHER : rows;
#pragma omp parallel for num_threads(threads) if (threads > 1)
        for (long o = 0; o < outputs; o += OUTPUTS) {
            const __m512i *w = weights + o * inputs / (2 * LANES);
            for (long r = first; r < end; r += ROWS) {
                const float *from = x + r * inputs;
                float *to = out + r * outputs + o;
                switch (end - r) {            // a loop of constant length stays in registers
                case 1: tile(1, w, from, inputs, to, outputs, r == first); break;
                case 2: tile(2, w, from, inputs, to, outputs, r == first); break;
                case 3: tile(3, w, from, inputs, to, outputs, r == first); break;
                case 4: tile(4, w, from, inputs, to, outputs, r == first); break;
                case 5: tile(5, w, from, inputs, to, outputs, r == first); break;
                default: tile(ROWS, w, from, inputs, to, outputs, r == first);
                }
            }
        }
    }
}
