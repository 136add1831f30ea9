/* cupola classify: what a trained network sees in images. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/classify_page.h"
#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/options.h"
#include "cli/common/signals.h"
#include "cupola/cupola.h"

#define TOP 5

typedef struct classify_given {
    const char *from, *data, *page, *device;
    bool skip_broken, ema;
    int64_t threads;
} classify_given;

static const cli_option options[] = {
    {"from", TEXT(classify_given, from), "DIR", "run", "folder of a checkpoint"},
    {"data", TEXT(classify_given, data), "DIR", NULL,
     "images with classes, as train takes them: those kept apart are told apart and counted"},
    {"page", TEXT(classify_given, page), "FILE", NULL,
     "write what --data shows as an HTML page: the classes, what was taken for what, and the worst "
     "mistakes"},
    {"ema", FLAG(classify_given, ema), NULL, NULL,
     "with the moving average of the weights, which train --ema kept"},
    {"skip-broken", FLAG(classify_given, skip_broken), NULL, NULL,
     "leave out files that cannot be decoded, and name them; without it one ends the run"},
    {"device", TEXT(classify_given, device), "auto|cpu|cuda[:N]", NULL,
     "where to run; without it CUP_DEVICE, else the first usable GPU, else the CPU"},
    {"threads", INTEGER(classify_given, threads, 0, 4096), "N", "0",
     "threads on a CPU; 0: all that the process may use"},
    {0}};

static void on_broken(const char *sentence, void *user)
{
    (void)user;
    fprintf(stderr, "note: left out: %s\n", sentence);
}

/* The place of the largest number that is none of those that are gone. */
static int64_t best_after(const float *p, int64_t count, const int64_t *gone, int gone_count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        bool is_gone = false;
        for (int k = 0; k < gone_count; k++)
            is_gone |= gone[k] == i;
        if (!is_gone && (best < 0 || p[i] > p[best]))
            best = i;
    }
    return best;
}

static void print_image(const cup_classifier *m, const char *path, const float *p)
{
    int64_t top[TOP], classes = cup_classifier_classes(m);
    printf("%s:", cli_shown(path));
    for (int k = 0; k < TOP && k < classes; k++) {
        top[k] = best_after(p, classes, top, k);
        printf("%s %s %.1f %%", k ? "," : "", cli_shown(cup_classifier_class(m, top[k])),
               100 * (double)p[top[k]]);
    }
    printf("\n");
}

static void add_image(cli_json *w, const cup_classifier *m, const char *path, const float *p)
{
    int64_t top[TOP], classes = cup_classifier_classes(m);
    json_open_object(w, NULL);
    json_add_string(w, "path", path);
    json_open_array(w, "classes");
    for (int k = 0; k < TOP && k < classes; k++) {
        top[k] = best_after(p, classes, top, k);
        json_open_object(w, NULL);
        json_add_string(w, "class", cup_classifier_class(m, top[k]));
        json_add_number(w, "probability", (double)p[top[k]]);
        json_close(w);
    }
    json_close(w);
    json_close(w);
}

static cup_images_options as_taken(const cup_classifier *m, const classify_given *given)
{
    return (cup_images_options){.size = sizeof(cup_images_options),
                                .height = cup_classifier_height(m),
                                .width = cup_classifier_width(m),
                                .channels = cup_classifier_channels(m),
                                .skip_broken = given->skip_broken,
                                .broken = on_broken};
}

static float *ask(cup_context *c, cup_classifier *m, const cup_images *images)
{
    size_t count = (size_t)(cup_images_count(images) * cup_classifier_classes(m));
    float *p = malloc(count * sizeof *p);
    if (!p)
        cup_fail(c, CUP_MEMORY, "no host memory for what the network says");
    else
        cup_classifier_ask(m, cup_images_pixels(images), cup_images_count(images), p);
    return p;
}

static int tell_images(const cli_call *call, cup_context *c, cup_classifier *m)
{
    cup_images_options o = as_taken(m, call->given);
    cup_images *images = cup_images_open(c, call->operands, call->operand_count, &o);
    float *p = images ? ask(c, m, images) : NULL;
    int code = cli_report(c);
    cli_json w;
    if (!code && call->json) {
        json_begin(&w, "classify");
        json_open_array(&w, "images");
    }
    for (int64_t i = 0; !code && i < cup_images_count(images); i++) {
        const float *own = p + i * cup_classifier_classes(m);
        if (call->json)
            add_image(&w, m, cup_images_path(images, i), own);
        else
            print_image(m, cup_images_path(images, i), own);
    }
    if (!code && call->json) {
        json_close(&w);
        code = json_end(&w);
    }
    free(p);
    cup_images_free(images);
    return code;
}

static int tell_document(const classify_counts *n)
{
    cli_json w;
    json_begin(&w, "classify");
    json_add_integer(&w, "images", n->images);
    json_add_number(&w, "top1", n->top1);
    json_add_number(&w, "top5", n->top5);
    json_open_array(&w, "classes");
    for (int64_t k = 0; k < n->classes; k++) {
        json_open_object(&w, NULL);
        json_add_string(&w, "class", cup_classifier_class(n->m, k));
        json_add_integer(&w, "images", classify_images_of(n, k));
        json_add_number(&w, "precision", classify_precision(n, k));
        json_add_number(&w, "recall", classify_recall(n, k));
        json_close(&w);
    }
    json_close(&w);
    return json_end(&w);
}

static int tell_table(const classify_counts *n)
{
    printf("%lld images: top-1 %.2f %%, top-5 %.2f %%\n", (long long)n->images, 100 * n->top1,
           100 * n->top5);
    printf("%-24s %8s %10s %8s\n", "class", "images", "precision", "recall");
    for (int64_t k = 0; k < n->classes; k++) {
        char precision[CLASSIFY_PART], recall[CLASSIFY_PART];
        printf("%-24s %8lld %10s %8s\n", cli_shown(cup_classifier_class(n->m, k)),
               (long long)classify_images_of(n, k),
               classify_part(classify_precision(n, k), precision),
               classify_part(classify_recall(n, k), recall));
    }
    return CLI_OK;
}

static int check_classes(const cup_classifier *m, const cup_images *images)
{
    for (int64_t k = 0; k < cup_images_classes(images); k++) {
        const char *own = cup_classifier_class(m, k), *other = cup_images_class(images, k);
        if (!own || strcmp(own, other) != 0)
            return cli_fail(CLI_FILE,
                            "the classes of --data are not those that the network learned: its "
                            "number %lld is %s, not %s",
                            (long long)k, own ? cli_shown(own) : "not there", cli_shown(other));
    }
    return CLI_OK;
}

static int tell_data(const cli_call *call, cup_context *c, cup_classifier *m)
{
    const classify_given *given = call->given;
    cup_images_options o = as_taken(m, given);
    cup_images *images = cup_images_load(c, given->data, CUP_SPLIT_VALIDATION, &o);
    int code = cli_report(c);
    if (!code)
        code = check_classes(m, images);
    float *p = code ? NULL : ask(c, m, images);
    code = code ? code : cli_report(c);
    classify_counts n = {0};
    if (!code && !classify_count(&n, m, images, p))
        code = cli_fail(CLI_MEMORY, "no host memory for what was taken for what");
    if (!code && given->page && classify_page(c, &n, given->page) != CUP_OK)
        code = cli_report(c);
    if (!code)
        code = call->json ? tell_document(&n) : tell_table(&n);
    classify_free(&n);
    free(p);
    cup_images_free(images);
    return code;
}

static int run(cli_call *call)
{
    const classify_given *given = call->given;
    if (!given->data == !call->operand_count)
        return cli_usage("name images, or with --data a folder of images with classes");
    if (given->page && !given->data)
        return cli_usage("--page shows what --data gives: name it");
    signals_stake(SIGNALS_NOTHING);
    signals_catch();
    cup_context *c = cup_context_new(
        CUP_OPTIONS(cup_options, .device = given->device, .threads = (int)given->threads));
    if (given->page)
        cup_file_check(c, given->page);
    cup_classifier *m = given->ema ? cup_classifier_load_average(c, given->from)
                                   : cup_classifier_load(c, given->from);
    int code = cli_report(c);
    if (!code)
        code = given->data ? tell_data(call, c, m) : tell_images(call, c, m);
    cup_classifier_free(m);
    cup_context_free(c);
    return code;
}

const cli_verb verb_classify = {
    .name = "classify",
    .synopsis = "[--from DIR] [OPTION]... IMAGE...|--data DIR",
    .words = "tell images apart with a trained network",
    .text = "Reads the network of a checkpoint of `cupola train --task classify` and says for each "
            "image, a PNG, JPEG or WebP file, which five classes are the likeliest.\n\n"
            "With --data it is asked about all images of a folder that are kept apart for "
            "validation, and what it says is held against their classes: how often the likeliest "
            "one is right, and how often one of five is; for each class the part of those taken "
            "for it that are of it (precision), and the part of those of it that are taken for it "
            "(recall). --page writes a page with these, what was taken for what, and the mistakes "
            "of which the network was surest, as pictures.",
    .examples = "What is in a picture:\ncupola classify --from shoes boot.png\n"
                "How good the network is, as a page:\n"
                "cupola classify --from shoes --data fashion-mnist --page shoes.html\n",
    .options = options,
    .size = sizeof(classify_given),
    .operand_most = 100000,
    .run = run,
};
