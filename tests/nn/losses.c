/* Losses and their gradients against values of another library: PyTorch in double. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { ROWS = 3, CLASSES = 4, COUNT = ROWS * CLASSES };

static const double x_values[] = {-2.8125, -1.25, 1.625, -1.9375, 1.5625, 0.625, -1.8125, -0.375,
                                 -0.5625, 1.6875, -1.875, 0.5625};
static const double t_values[] = {-0.125, -0.3125, 0.9375, -0.8125, -0.75, 0.0625, 0.875, -0.75,
                                 0.3125, 0.0625, -0.875, -0.5};
static const double p_values[] = {0, 0.0625, 0.4375, 0.5625, 0.5625, 1, 0.8125, 0.0625, 0, 0.125,
                                 0.125, 0.875};

typedef struct inputs {
    cup_context *c;
    cup_tensor *x, *t, *p, *weight, *pos_weight, *classes;
} inputs;

static cup_tensor *of_mse(const inputs *i, cup_reduction reduction)
{
    return cup_mse(i->c, i->x, i->t, reduction);
}

static cup_tensor *of_l1(const inputs *i, cup_reduction reduction)
{
    return cup_l1(i->c, i->x, i->t, reduction);
}

static cup_tensor *of_huber(const inputs *i, cup_reduction reduction)
{
    return cup_huber(i->c, i->x, i->t, 0.75, reduction);
}

static cup_tensor *of_smooth(const inputs *i, cup_reduction reduction)
{
    return cup_smooth_l1(i->c, i->x, i->t, 0.75, reduction);
}

static cup_tensor *of_bce(const inputs *i, cup_reduction reduction)
{
    return cup_bce_with_logits(i->c, i->x, i->p, NULL, NULL, reduction);
}

static cup_tensor *of_bcew(const inputs *i, cup_reduction reduction)
{
    return cup_bce_with_logits(i->c, i->x, i->p, i->weight, i->pos_weight, reduction);
}

static cup_tensor *of_kl(const inputs *i, cup_reduction reduction)
{
    return cup_kl_div(i->c, i->x, i->p, false, reduction);
}

static cup_tensor *of_kllog(const inputs *i, cup_reduction reduction)
{
    return cup_kl_div(i->c, i->x, i->t, true, reduction);
}

static cup_tensor *of_nll(const inputs *i, cup_reduction reduction)
{
    return cup_nll(i->c, i->x, i->classes, i->weight, -1, reduction);
}

static cup_tensor *of_ce(const inputs *i, cup_reduction reduction)
{
    return cup_class_cross_entropy(i->c, i->x, i->classes, i->weight, -1, 0.1, reduction);
}

static cup_tensor *of_ce0(const inputs *i, cup_reduction reduction)
{
    return cup_class_cross_entropy(i->c, i->x, i->classes, NULL, -1, 0, reduction);
}

static cup_tensor *of_soft(const inputs *i, cup_reduction reduction)
{
    return cup_soft_cross_entropy(i->c, i->x, i->p, i->weight, 0.1, reduction);
}

/* Of each the result and the gradient of x, where result number k counts k + 1 times. */
static const struct {
    cup_tensor *(*loss)(const inputs *, cup_reduction);
    cup_reduction reduction;
    int count;
    double y[COUNT], dx[COUNT];
} cases[] = {
    {of_mse, CUP_REDUCTION_MEAN, 1, {2.366861979},
     {-0.4479166667, -0.15625, 0.1145833333, -0.1875, 0.3854166667, 0.09375, -0.4479166667, 0.0625,
      -0.1458333333, 0.2708333333, -0.1666666667, 0.1770833333}},
    {of_mse, CUP_REDUCTION_SUM, 1, {28.40234375},
     {-5.375, -1.875, 1.375, -2.25, 4.625, 1.125, -5.375, 0.75, -1.75, 3.25, -2, 2.125}},
    {of_mse, CUP_REDUCTION_NONE, 12, {7.22265625, 0.87890625, 0.47265625, 1.265625, 5.34765625,
     0.31640625, 7.22265625, 0.140625, 0.765625, 2.640625, 1, 1.12890625},
     {-5.375, -3.75, 4.125, -9, 23.125, 6.75, -37.625, 6, -15.75, 32.5, -22, 25.5}},
    {of_l1, CUP_REDUCTION_MEAN, 1, {1.328125},
     {-0.08333333333, -0.08333333333, 0.08333333333, -0.08333333333, 0.08333333333, 0.08333333333,
      -0.08333333333, 0.08333333333, -0.08333333333, 0.08333333333, -0.08333333333, 0.08333333333}},
    {of_l1, CUP_REDUCTION_SUM, 1, {15.9375},
     {-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1}},
    {of_l1, CUP_REDUCTION_NONE, 12, {2.6875, 0.9375, 0.6875, 1.125, 2.3125, 0.5625, 2.6875, 0.375,
     0.875, 1.625, 1, 1.0625},
     {-1, -2, 3, -4, 5, 6, -7, 8, -9, 10, -11, 12}},
    {of_huber, CUP_REDUCTION_MEAN, 1, {0.7223307292},
     {-0.0625, -0.0625, 0.05729166667, -0.0625, 0.0625, 0.046875, -0.0625, 0.03125, -0.0625, 0.0625,
      -0.0625, 0.0625}},
    {of_huber, CUP_REDUCTION_SUM, 1, {8.66796875},
     {-0.75, -0.75, 0.6875, -0.75, 0.75, 0.5625, -0.75, 0.375, -0.75, 0.75, -0.75, 0.75}},
    {of_huber, CUP_REDUCTION_NONE, 12, {1.734375, 0.421875, 0.236328125, 0.5625, 1.453125,
     0.158203125, 1.734375, 0.0703125, 0.375, 0.9375, 0.46875, 0.515625},
     {-0.75, -1.5, 2.0625, -3, 3.75, 3.375, -5.25, 3, -6.75, 7.5, -8.25, 9}},
    {of_smooth, CUP_REDUCTION_MEAN, 1, {0.9631076389},
     {-0.08333333333, -0.08333333333, 0.07638888889, -0.08333333333, 0.08333333333, 0.0625,
      -0.08333333333, 0.04166666667, -0.08333333333, 0.08333333333, -0.08333333333, 0.08333333333}},
    {of_smooth, CUP_REDUCTION_SUM, 1, {11.55729167},
     {-1, -1, 0.9166666667, -1, 1, 0.75, -1, 0.5, -1, 1, -1, 1}},
    {of_smooth, CUP_REDUCTION_NONE, 12, {2.3125, 0.5625, 0.3151041667, 0.75, 1.9375, 0.2109375,
     2.3125, 0.09375, 0.5, 1.25, 0.625, 0.6875},
     {-1, -2, 2.75, -4, 5, 4.5, -7, 4, -9, 10, -11, 12}},
    {of_bce, CUP_REDUCTION_MEAN, 1, {0.764596935},
     {0.004721035442, 0.01335001157, 0.03316529476, -0.03638143626, 0.02201764951, -0.02905376128,
      -0.05601364588, 0.02873611667, 0.03024743379, 0.05990792521, 0.0006636866832,
      -0.01983076713}},
    {of_bce, CUP_REDUCTION_SUM, 1, {9.17516322},
     {0.05665242531, 0.1602001388, 0.3979835371, -0.4365772352, 0.2642117941, -0.3486451353,
      -0.6721637505, 0.3448334, 0.3629692055, 0.7188951026, 0.007964240198, -0.2379692055}},
    {of_bce, CUP_REDUCTION_NONE, 12, {0.05832048028, 0.3300540813, 1.093807135, 1.224430287,
     0.8738928904, 0.4287006783, 1.623870204, 0.5465607641, 0.4509372816, 1.646289578, 0.3770500576,
     0.5212497816},
     {0.05665242531, 0.3204002777, 1.193950611, -1.746308941, 1.32105897, -2.091870812,
      -4.705146254, 2.7586672, 3.26672285, 7.188951026, 0.08760664218, -2.855630466}},
    {of_bcew, CUP_REDUCTION_MEAN, 1, {0.7328680669},
     {0.002360517721, 0.01335001157, 0.07232858556, -0.02958154427, 0.006947382426, -0.02905376128,
      -0.05382089198, 0.005640626564, 0.0151237169, 0.05990792521, 0.01035899586, -0.01819094407}},
    {of_bcew, CUP_REDUCTION_SUM, 1, {8.794416803},
     {0.02832621265, 0.1602001388, 0.8679430267, -0.3549785312, 0.08336858912, -0.3486451353,
      -0.6458507037, 0.06768751876, 0.1814846028, 0.7188951026, 0.1243079504, -0.2182913288}},
    {of_bcew, CUP_REDUCTION_NONE, 12, {0.02916024014, 0.3300540813, 2.108975993, 0.8888819105,
     0.4904680784, 0.4287006783, 1.65222282, 0.164706543, 0.2254686408, 1.646289578, 0.501890733,
     0.3275975061},
     {0.02832621265, 0.3204002777, 2.60382908, -1.419914125, 0.4168429456, -2.091870812,
      -4.520954926, 0.5415001501, 1.633361425, 7.188951026, 1.367387454, -2.619495946}},
    {of_kl, CUP_REDUCTION_MEAN, 1, {-0.1817057264},
     {-0, -0.005208333333, -0.03645833333, -0.046875, -0.046875, -0.08333333333, -0.06770833333,
      -0.005208333333, -0, -0.01041666667, -0.01041666667, -0.07291666667}},
    {of_kl, CUP_REDUCTION_SUM, 1, {-2.180468717},
     {-0, -0.0625, -0.4375, -0.5625, -0.5625, -1, -0.8125, -0.0625, -0, -0.125, -0.125, -0.875}},
    {of_kl, CUP_REDUCTION_NONE, 12, {0, -0.09516179514, -1.072609376, 0.7662014185, -1.202548582,
     -0.625, 1.303949266, -0.1498492951, 0, -0.4708676927, -0.02555519271, -0.6090274685},
     {-0, -0.125, -1.3125, -2.25, -2.8125, -6, -5.6875, -0.5, -0, -1.25, -1.375, -10.5}},
    {of_kllog, CUP_REDUCTION_MEAN, 1, {0.4682116712},
     {-0.07354140855, -0.06096796908, -0.2127991215, -0.03697894251, -0.0393638794, -0.08870787158,
      -0.1999062745, -0.0393638794, -0.1139031618, -0.08870787158, -0.03473850164, -0.05054422164}},
    {of_kllog, CUP_REDUCTION_SUM, 1, {5.618540055},
     {-0.8824969026, -0.7316156289, -2.553589458, -0.4437473101, -0.4723665527, -1.064494459,
      -2.398875294, -0.4723665527, -1.366837941, -1.064494459, -0.4168620197, -0.6065306597}},
    {of_kllog, CUP_REDUCTION_NONE, 12, {2.371710426, 0.6858896521, -1.755592752, 0.4992157238,
     -1.092347653, -0.5987781331, 6.446977353, -0.1771374573, 1.195983199, -1.729803496,
     0.4168620197, -0.6444388259},
     {-0.8824969026, -1.463231258, -7.660768374, -1.77498924, -2.361832764, -6.386966754,
      -16.79212706, -3.778932422, -12.30154147, -10.64494459, -4.585482216, -7.278367917}},
    {of_nll, CUP_REDUCTION_MEAN, 1, {-1.1875},
     {0, 0, -0.8, 0, 0, 0, 0, 0, -0.2, 0, 0, 0}},
    {of_nll, CUP_REDUCTION_SUM, 1, {-2.96875},
     {0, 0, -2, 0, 0, 0, 0, 0, -0.5, 0, 0, 0}},
    {of_nll, CUP_REDUCTION_NONE, 3, {-3.25, 0, 0.28125},
     {0, 0, -2, 0, 0, 0, 0, 0, -1.5, 0, 0, 0}},
    {of_ce, CUP_REDUCTION_MEAN, 1, {0.7020895768},
     {0.003168623906, 0.02897032512, -0.0492344591, 0.01709551007, 0, 0, 0, 0, -0.1692813873,
      0.1391340446, -0.0157693928, 0.04591673555}},
    {of_ce, CUP_REDUCTION_SUM, 1, {1.755223942},
     {0.007921559765, 0.0724258128, -0.1230861477, 0.04273877519, 0, 0, 0, 0, -0.4232034684,
      0.3478351115, -0.03942348199, 0.1147918389}},
    {of_ce, CUP_REDUCTION_NONE, 3, {0.3242568237, 0, 1.430967118},
     {0.007921559765, 0.0724258128, -0.1230861477, 0.04273877519, 0, 0, 0, 0, -1.269610405,
      1.043505334, -0.118270446, 0.3443755166}},
    {of_ce0, CUP_REDUCTION_MEAN, 1, {1.359788198},
     {0.005391830961, 0.02572298688, -0.04404914792, 0.01293433008, 0, 0, 0, 0, -0.4638652583,
      0.3428368841, 0.009725533801, 0.1113028403}},
    {of_ce0, CUP_REDUCTION_SUM, 1, {2.719576396},
     {0.01078366192, 0.05144597376, -0.08809829584, 0.02586866016, 0, 0, 0, 0, -0.9277305165,
      0.6856737683, 0.0194510676, 0.2226056807}},
    {of_ce0, CUP_REDUCTION_NONE, 3, {0.09222307524, 0, 2.627353321},
     {0.01078366192, 0.05144597376, -0.08809829584, 0.02586866016, 0, 0, 0, 0, -2.78319155,
      2.057021305, 0.05835320281, 0.667817042}},
    {of_soft, CUP_REDUCTION_MEAN, 1, {3.191067576},
     {-0.0003418365786, -0.008836089517, 0.04427346903, -0.03509554293, 0.4897243272,
      -0.08188111642, -0.4843794925, 0.07653628168, 0.01096475644, 0.09772961189, -0.08759409939,
      -0.02110026894}},
    {of_soft, CUP_REDUCTION_SUM, 1, {9.573202729},
     {-0.001025509736, -0.02650826855, 0.1328204071, -0.1052866288, 1.469172982, -0.2456433492,
      -1.453138477, 0.229608845, 0.03289426931, 0.2931888357, -0.2627822982, -0.06330080683}},
    {of_soft, CUP_REDUCTION_NONE, 3, {0.8603381473, 7.239511402, 1.47335318},
     {-0.001025509736, -0.02650826855, 0.1328204071, -0.1052866288, 2.938345963, -0.4912866985,
      -2.906276955, 0.4592176901, 0.09868280793, 0.8795665071, -0.7883468945, -0.1899024205}},
};

static inputs make(const char *device, cup_dtype dtype)
{
    const int64_t shape[] = {ROWS, CLASSES}, rows = ROWS, classes = CLASSES;
    inputs i = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = device))};
    if (!i.c || cup_error(i.c) != CUP_OK)
        test_skip("no GPU");
    cup_context *c = i.c;
    i.x = cup_require_grad(cup_cast(c, cup_tensor_from(c, CUP_F64, 2, shape, x_values), dtype));
    i.t = cup_cast(c, cup_tensor_from(c, CUP_F64, 2, shape, t_values), dtype);
    i.p = cup_cast(c, cup_tensor_from(c, CUP_F64, 2, shape, p_values), dtype);
    i.weight = cup_cast(
        c, cup_tensor_from(c, CUP_F64, 1, &classes, (double[]){0.5, 1, 2, 0.25}), dtype);
    i.pos_weight =
        cup_cast(c, cup_tensor_from(c, CUP_F64, 1, &classes, (double[]){2, 1, 0.5, 3}), dtype);
    i.classes = cup_tensor_from(c, CUP_I32, 1, &rows, (int32_t[]){2, -1, 0});
    return i;
}

static void expect_near(cup_tensor *got, const double *want, int count, double most, int number)
{
    double values[COUNT];
    cup_context *c = cup_tensor_context(got);
    cup_tensor *wide = cup_cast(c, cup_copy(c, got), CUP_F64);
    EXPECT_INT(cup_tensor_count(got), count);
    EXPECT_INT(cup_tensor_read(wide, values, sizeof *values * (size_t)count), CUP_OK);
    for (int k = 0; k < count; k++)
        if (!(fabs(values[k] - want[k]) <= most * (1 + fabs(want[k]))))
            test_fail(__FILE__, __LINE__, "case %d: number %d is %.9g, expected %.9g", number, k,
                      values[k], want[k]);
}

static void check(const char *device)
{
    static const cup_dtype dtypes[] = {CUP_F64, CUP_F32, CUP_BF16};
    static const double most[] = {1e-8, 2e-6, 2e-2};
    for (int d = 0; d < 3; d++) {
        inputs i = make(device, dtypes[d]);
        cup_context *c = i.c;
        for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
            const int count = cases[n].count;
            cup_tensor *y = cases[n].loss(&i, cases[n].reduction);
            if (!y)
                test_fail(__FILE__, __LINE__, "case %d: %s", (int)n, cup_error_text(c));
            expect_near(y, cases[n].y, count, count == 1 && d ? 1e-5 : most[d], (int)n);
            EXPECT(d < 2 || count > 1 || cup_tensor_dtype(y) == CUP_F32);
            cup_tensor *times = cup_arange(c, cup_tensor_dtype(y), 1, count + 1, NULL);
            times = cup_reshape(c, times, cup_tensor_ndim(y),
                                count == COUNT  ? (int64_t[]){ROWS, CLASSES}
                                : count == ROWS ? (int64_t[]){ROWS}
                                                : NULL);
            EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, y, times), NULL, 0, false)), CUP_OK);
            expect_near(cup_grad(i.x), cases[n].dx, COUNT, most[d], (int)n);
            cup_grad_clear(i.x);
        }
        EXPECT_INT(cup_error(c), CUP_OK);
        cup_context_free(c);
    }
}

TEST(losses_are_those_of_another_library)
{
    check("cpu");
}

TEST_LIMITED(gpu_losses, 300)
{
    check("cuda");
}

/* One element after another: what is far out, and the kinks. */
TEST(losses_at_their_edges)
{
    const int64_t four = 4;
    const float far[] = {INFINITY, 1e30f, 0, -1e30f}, logits[] = {90, -90, 0, -200};
    const float huge_slope[] = {0.5f, 0.5f, 0, -0.5f};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *zero = cup_zeros(c, CUP_F32, 1, &four);
    cup_tensor *x = cup_require_grad(cup_tensor_from(c, CUP_F32, 1, &four, far));
    EXPECT_INT(cup_backward(c, cup_huber(c, x, zero, 0.5, CUP_REDUCTION_SUM)), CUP_OK);
    for (int k = 0; k < 4; k++)
        EXPECT_NEAR((double)((const float *)cup_tensor_data(cup_grad(x)))[k], (double)huge_slope[k],
                    0);
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 1, &four, (float[]){1, 1, 1, 0});
    cup_tensor *z = cup_require_grad(cup_tensor_from(c, CUP_F32, 1, &four, logits));
    cup_tensor *y = cup_bce_with_logits(c, z, t, NULL, NULL, CUP_REDUCTION_NONE);
    EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
    const float *values = cup_tensor_data(y), *slopes = cup_tensor_data(cup_grad(z));
    EXPECT_NEAR((double)values[0] / 8.194e-40, 1, 1e-3); /* e^-90, not 0 */
    EXPECT_NEAR((double)values[1], 90, 1e-5);
    EXPECT_NEAR((double)values[2], 0.69314718, 1e-6);
    EXPECT_NEAR((double)values[3], 0, 1e-40);
    for (int k = 0; k < 4; k++)
        EXPECT_NEAR((double)slopes[k], -(double)(k == 1 || k == 2) * (k == 1 ? 1 : 0.5), 1e-6);
    cup_tensor *inf = cup_full(c, CUP_F32, 1, &four, -INFINITY);
    EXPECT_NEAR(cup_tensor_item(cup_kl_div(c, inf, zero, false, CUP_REDUCTION_SUM)), 0, 0);
    EXPECT_NEAR(cup_tensor_item(cup_kl_div(c, zero, inf, true, CUP_REDUCTION_SUM)), 0, 0);
    cup_tensor *none = cup_zeros(c, CUP_F32, 1, (int64_t[]){0});
    EXPECT(isnan(cup_tensor_item(cup_mse(c, none, none, CUP_REDUCTION_MEAN))));
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

static void expect_error(cup_context *c, const char *part)
{
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

TEST(losses_refuse_with_a_sentence)
{
    inputs i = make("cpu", CUP_F32);
    cup_context *c = i.c;
    EXPECT(!cup_mse(c, i.x, i.weight, CUP_REDUCTION_MEAN));
    expect_error(c, "mse: the target must have the shape of x");
    EXPECT(!cup_l1(c, i.x, NULL, CUP_REDUCTION_MEAN));
    expect_error(c, "must be tensors");
    EXPECT(!cup_l1(c, i.x, i.t, (cup_reduction)9));
    expect_error(c, "9 is no reduction");
    EXPECT(!cup_huber(c, i.x, i.t, 0, CUP_REDUCTION_MEAN));
    expect_error(c, "delta is 0");
    EXPECT(!cup_smooth_l1(c, i.x, i.t, -1, CUP_REDUCTION_MEAN));
    expect_error(c, "beta is -1");
    EXPECT(!cup_nll(c, i.x, i.x, NULL, -1, CUP_REDUCTION_MEAN));
    expect_error(c, "one for each row of x");
    EXPECT(!cup_nll(c, i.x, i.classes, i.x, -1, CUP_REDUCTION_MEAN));
    expect_error(c, "one weight for each of the 4 classes");
    EXPECT(!cup_class_cross_entropy(c, i.x, i.classes, NULL, -1, 2, CUP_REDUCTION_MEAN));
    expect_error(c, "label_smoothing is 2");
    EXPECT(!cup_soft_cross_entropy(c, i.x, i.p, i.x, 0, CUP_REDUCTION_MEAN));
    expect_error(c, "one weight for each of the 4 classes");
    EXPECT(!cup_nll(c, i.x, cup_full(c, CUP_I64, 1, (int64_t[]){ROWS}, 7), NULL, -1,
                    CUP_REDUCTION_MEAN));
    EXPECT(cup_error(c) != CUP_OK);
    cup_context_free(c);
}
