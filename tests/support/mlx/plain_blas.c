/* Products of float32 matrices, bit for bit those of the reference BLAS, at a multiple of its speed.

   Each number of the result is its own sum, taken in the order of k, each product and each sum rounded once. So it is
   the same whatever the shapes are, and sixteen sums go on side by side. */

#include <stdlib.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, WIDTH = 16 };
typedef float lanes __attribute__((vector_size(4 * WIDTH), aligned(4)));

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {
    if (order != ROW_MAJOR) { /* columns of it are the rows of the transposed product */
        cblas_sgemm(ROW_MAJOR, tb, ta, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
        return;
    }
    const long a_row = ta == NO_TRANSPOSE ? lda : 1, a_k = ta == NO_TRANSPOSE ? 1 : lda;
    const long b_k = tb == NO_TRANSPOSE ? ldb : 1, b_column = tb == NO_TRANSPOSE ? 1 : ldb;
    const int scales_first = tb == NO_TRANSPOSE; /* where the reference multiplies by alpha, and begins with c */
    lanes *panel = malloc((size_t)(k ? k : 1) * sizeof(lanes));
    if (!panel) abort();
    for (int column = 0; column < n; column += WIDTH) {
        const int width = n - column < WIDTH ? n - column : WIDTH;
        if (width == WIDTH)
            for (long l = 0; l < k; l++)
                for (int j = 0; j < WIDTH; j++) panel[l][j] = b[l * b_k + (column + j) * b_column];
        else
            for (long l = 0; l < k; l++)
                for (int j = 0; j < WIDTH; j++) panel[l][j] = j < width ? b[l * b_k + (column + j) * b_column] : 0;
        for (int row = 0; row < m; row += 4) {
            const int height = m - row < 4 ? m - row : 4;
            const float *rows[4];
            lanes sums[4] = {{0}};
            for (int i = 0; i < 4; i++) rows[i] = a + (row + (i < height ? i : 0)) * a_row;
            if (scales_first && beta != 0)
                for (int i = 0; i < height; i++)
                    for (int j = 0; j < width; j++) sums[i][j] = beta * c[(long)(row + i) * ldc + column + j];
            const float factor = scales_first ? alpha : 1;
            if (height == 1)
                for (long l = 0; l < k; l++) sums[0] += factor * rows[0][l * a_k] * panel[l];
            else
                for (long l = 0; l < k; l++) {
                    sums[0] += factor * rows[0][l * a_k] * panel[l];
                    sums[1] += factor * rows[1][l * a_k] * panel[l];
                    sums[2] += factor * rows[2][l * a_k] * panel[l];
                    sums[3] += factor * rows[3][l * a_k] * panel[l];
                }
            for (int i = 0; i < height; i++)
                for (int j = 0; j < width; j++) {
                    float *to = c + (long)(row + i) * ldc + column + j;
                    if (scales_first) *to = sums[i][j];
                    else *to = beta == 0 ? alpha * sums[i][j] : alpha * sums[i][j] + beta * *to;
                }
        }
    }
    free(panel);
}
