/* Newton's method for cube roots, with a formula and its derivative: each step is one kernel. */
#include <cupola/cupola.h>
#include <stdio.h>

int main(void)
{
    cup_context *c = cup_context_new(NULL);
    float start[] = {1, 1, 1, 1}, wanted[] = {8, 27, 64, 2};
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){4}, start);
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){4}, wanted);

    cup_expr *f = cup_expr_new(c, "x a", NULL, "x^3 - a");
    cup_expr *slope = cup_expr_derivative(f, 0, 0);
    printf("the derivative of %s is %s\n", cup_expr_words(f), cup_expr_words(slope));

    /* The step as one formula, with the length of the step as a parameter. */
    cup_expr *step = cup_expr_new(c, "x a", "length", "x - length * (x^3 - a) / (3 * x^2)");
    for (int i = 0; i < 20; i++)
        x = cup_expr_call(step, (cup_tensor *[]){x, a}, (double[]){1.0}, NULL);
    cup_tensor_print(x, stdout);

    /* How far off the worst is: elementwise work and the fold after it in one kernel. */
    cup_expr *error = cup_expr_new(c, "x a", NULL, "max[](abs(x^3 - a))");
    printf("largest error %.1g\n",
           cup_tensor_item(cup_expr_call(error, (cup_tensor *[]){x, a}, NULL, NULL)));

    if (cup_error(c))
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_expr_free(f);
    cup_expr_free(slope);
    cup_expr_free(step);
    cup_expr_free(error);
    int status = cup_error(c) != CUP_OK;
    cup_context_free(c);
    return status;
}
