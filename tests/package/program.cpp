// A program in C++ as a user writes one: an op of its own with a gradient, memory of its own that
// goes out by DLPack, a model on the training loop. Compiled without a warning, it ends with 0.
#include <cupola/cupola.h>
#include <cupola/dlpack.h>

#include <cstdio>
#include <vector>

namespace {

struct line {
    cup_linear_layer layer;
    cup_tensor *x, *y;
};

cup_tensor *loss(cup_context *c, int64_t, void *user)
{
    const line *m = static_cast<line *>(user);
    cup_tensor *error = cup_sub(c, cup_linear_layer_call(&m->layer, m->x), m->y);
    return cup_mean(c, cup_mul(c, error, error), nullptr, 0, false);
}

bool train(cup_context *c)
{
    const float x[] = {0, 1, 2, 3}, y[] = {1, 3, 5, 7};
    const int64_t shape[] = {4, 1};
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    line m{};
    m.x = cup_keep(cup_tensor_from(c, CUP_F32, 2, shape, x));
    m.y = cup_keep(cup_tensor_from(c, CUP_F32, 2, shape, y));
    cup_linear_layer_new(&m.layer, list, "line", 1, 1, nullptr);
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.loss = loss;
    calls.user = &m;
    cup_loop_options options = CUP_DEFAULTS(cup_loop_options);
    options.schedule.high = 0.1;
    options.schedule.steps = 300;
    cup_loop *loop = cup_loop_new(list, &calls, &options);
    bool learned = cup_loop_run(loop, nullptr) == CUP_OK &&
                   cup_tensor_item(loss(c, 0, &m)) < 0.01;
    cup_loop_free(loop);
    cup_parameters_free(list);
    cup_tensor_free(m.x);
    cup_tensor_free(m.y);
    return learned;
}

cup_status forward(cup_context *c, cup_tensor *const *in, int, const void *factor,
                   cup_tensor **out)
{
    out[0] = cup_scale(c, cup_mul(c, in[0], in[0]), *static_cast<const double *>(factor));
    return cup_error(c);
}

cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    double factor = *static_cast<const double *>(g->attributes);
    if (g->wanted[0])
        g->d_inputs[0] = cup_scale(c, cup_mul(c, g->inputs[0], g->d_outputs[0]), 2 * factor);
    return cup_error(c);
}

bool differentiate(cup_context *c)
{
    cup_custom_op op = CUP_DEFAULTS(cup_custom_op);
    op.name = "scaled_square";
    op.output_count = 1;
    op.saves_inputs = 1;
    op.attributes_size = sizeof(double);
    op.forward = forward;
    op.backward = backward;
    const float data[] = {1, 2, 3};
    const int64_t shape[] = {3};
    const double factor = 0.5;
    float d[3] = {0, 0, 0};
    cup_tensor *x = cup_require_grad(cup_tensor_from(c, CUP_F32, 1, shape, data)), *y = nullptr;
    cup_custom(c, &op, &x, 1, &factor, &y);
    cup_backward(c, cup_sum(c, y, nullptr, 0, false));
    cup_tensor_read(cup_grad(x), d, sizeof d);
    return d[0] == 1 && d[1] == 2 && d[2] == 3;
}

void count(void *user)
{
    ++*static_cast<int *>(user);
}

bool hand_over(cup_context *c)
{
    std::vector<float> mine{0, 1, 2, 3, 4, 5};
    const int64_t shape[] = {2, 3};
    int released = 0;
    cup_wrap_options options = CUP_DEFAULTS(cup_wrap_options);
    options.release = count;
    options.user = &released;
    cup_scope_open(c);
    cup_tensor *x = cup_tensor_wrap(c, CUP_F32, 2, shape, mine.data(), &options);
    DLManagedTensorVersioned *out = cup_dlpack_export(x, 0, false);
    cup_scope_close(c);
    if (!out || released)
        return false;
    bool same = out->dl_tensor.data == mine.data() && out->dl_tensor.shape[1] == 3;
    out->deleter(out);
    return same && released == 1;
}

} // namespace

int main()
{
    cup_options options = CUP_DEFAULTS(cup_options);
    options.device = "cpu";
    cup_context *c = cup_context_new(&options);
    int code = !train(c) ? 1 : !differentiate(c) ? 2 : !hand_over(c) ? 3 : 0;
    if (cup_error(c))
        std::fprintf(stderr, "%s\n", cup_error_text(c));
    cup_context_free(c);
    return code;
}
