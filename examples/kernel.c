/* A CUDA kernel of one's own on the library's tensors: y[i] += a x[i]. */
#include <cupola/cupola.h>
#include <stdio.h>

static const char text[] =
    "extern \"C\" __global__ void axpy(float *y, const float *x, float a, long long n)\n"
    "{\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        y[i] += a * x[i];\n"
    "}\n";

int main(void)
{
    cup_context *c = cup_context_new(NULL);
    printf("%s\n", cup_device_text(c));
    if (!cup_device_is_cuda(c)) {
        printf("this needs a GPU\n");
        cup_context_free(c);
        return 0;
    }
    int64_t n = 1000;
    cup_tensor *x = cup_normal(c, CUP_F32, 1, &n, 0, 1), *y = cup_full(c, CUP_F32, 1, &n, 3);
    cup_kernel *axpy = cup_kernel_new(c, CUP_OPTIONS(cup_kernel_source,
                                             .name = "axpy",
                                             .text = text,
                                             .entry = "axpy",
                                             .arguments = "f32 *y, const f32 *x, f32 a, i64 n"));
    cup_kernel_grid grid = {sizeof grid, .blocks = {(n + 255) / 256}, .threads = {256}};
    cup_kernel_argument arguments[] = {CUP_TENSOR_ARGUMENT(y), CUP_TENSOR_ARGUMENT(x),
                                       CUP_NUMBER_ARGUMENT(2.5), CUP_INTEGER_ARGUMENT(n)};
    double us = 0;
    cup_kernel_launch(axpy, &grid, arguments, 4);
    cup_tensor_print(cup_sub(c, y, cup_scale(c, x, 2.5)), stdout);
    cup_kernel_time(axpy, &grid, arguments, 4, &us);
    printf("a launch takes %.1f us\n", us);

    /* What cannot be right is refused before it reaches the card. */
    arguments[3] = (cup_kernel_argument)CUP_NUMBER_ARGUMENT(0.5);
    cup_error_clear(c);
    cup_kernel_launch(axpy, &grid, arguments, 4);
    printf("%s\n", cup_error_text(c));
    int status = cup_error(c) != CUP_ARGUMENT;
    cup_kernel_free(axpy);
    cup_context_free(c);
    return status;
}
