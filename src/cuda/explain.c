/* Looks round the machine for the reason why CUDA does not start. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"

static bool first_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(out, (int)size, file);
    fclose(file);
    if (got)
        out[strcspn(out, "\n")] = 0;
    return got;
}

/* True when the PCI bus shows an NVIDIA display or 3D controller. */
static bool card_on_bus(void)
{
    DIR *folder = opendir("/sys/bus/pci/devices");
    bool seen = false;
    struct dirent *entry;
    while (folder && !seen && (entry = readdir(folder))) {
        char path[512], vendor[32], class[32];
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/vendor", entry->d_name);
        if (entry->d_name[0] == '.' || !first_line(path, vendor, sizeof vendor))
            continue;
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/class", entry->d_name);
        seen = !strcmp(vendor, "0x10de") && first_line(path, class, sizeof class) &&
               !strncmp(class, "0x03", 4);
    }
    if (folder)
        closedir(folder);
    return seen;
}

/* A device file that is there and may not be opened: its path, else NULL. */
static const char *forbidden(void)
{
    static const char *const files[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int handle = open(files[i], O_RDWR | O_CLOEXEC);
        if (handle >= 0)
            close(handle);
        else if (errno == EACCES || errno == EPERM)
            return files[i];
    }
    return NULL;
}

static bool in_container(void)
{
    const char *kind = getenv("container");
    return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
           (kind && *kind) || getenv("KUBERNETES_SERVICE_HOST");
}

/* What is known when the driver sees no device, or there is no driver. */
static void explain_absence(bool driver, char *out, size_t size)
{
    const char *hidden = getenv("CUDA_VISIBLE_DEVICES"), *file = forbidden();
    bool module = access("/proc/driver/nvidia/version", F_OK) == 0;
    bool device = access("/dev/nvidiactl", F_OK) == 0;
    if (file)
        snprintf(out, size, "%s may not be opened by this user: join the group that owns it "
                            "(often video or render), or change its mode", file);
    else if (driver && hidden)
        snprintf(out, size, "CUDA_VISIBLE_DEVICES=%.100s leaves no GPU: unset it, or name one "
                            "that nvidia-smi -L lists", hidden);
    else if (in_container() && (module || card_on_bus()) && (!driver || !device))
        snprintf(out, size, "there is a GPU, but this container was started without it: start it "
                            "with --gpus all (docker, podman: the NVIDIA container toolkit)");
    else if (driver && module && !device)
        snprintf(out, size, "the kernel module is loaded but /dev/nvidiactl is missing: run "
                            "nvidia-modprobe or nvidia-smi once as root");
    else if (driver && !module && card_on_bus())
        snprintf(out, size, "there is an NVIDIA card but the kernel module is not loaded: run "
                            "\"modprobe nvidia\" as root, or install the driver again");
    else if (!driver && card_on_bus())
        snprintf(out, size, "there is an NVIDIA card but no driver: %s",
                 cup__library_report_of(CUP__LIBCUDA)->cure);
    else
        snprintf(out, size, "no NVIDIA card was seen on this machine; use the CPU");
}

static const struct {
    CUresult result;
    const char *words;
} cures[] = {
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA was started before this process was forked: start CUDA "
                                 "only in the child, or start the child with exec"},
    {CUDA_ERROR_STUB_LIBRARY, "libcuda.so is the toolkit's stub, not the driver: remove the stubs "
                              "folder from LD_LIBRARY_PATH, or set CUP_LIBCUDA"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "another process has the GPU for itself: end it, or ask for "
                                    "the default mode with nvidia-smi -c 0"},
    {CUDA_ERROR_OUT_OF_MEMORY, "the GPU has no memory left for a context: end other programs on "
                               "it (nvidia-smi shows them)"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "the system is not ready: on machines with NVSwitch start "
                                  "nvidia-fabricmanager"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "the driver library and the kernel module are of "
                                        "different versions: restart the machine after the "
                                        "update, or in a container use the host's library"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "the compatibility libcuda does not support this "
                                                "card: remove it from LD_LIBRARY_PATH"},
    {CUDA_ERROR_OPERATING_SYSTEM, "the operating system refused: see dmesg, and the limits on "
                                  "locked memory and open files (ulimit -a)"},
    {CUDA_ERROR_UNKNOWN, "often /dev/nvidia-uvm is missing: run nvidia-modprobe -u as root, or "
                         "restart the machine"},
};

void cup__cuda_explain(CUresult result, char *out, size_t size)
{
    if (!cup__library_open(CUP__LIBCUDA)) {
        explain_absence(false, out, size);
        return;
    }
    char words[CUP__RESULT_TEXT];
    cup__cuda_result_text(result, words);
    int used = snprintf(out, size, "%s: ", words);
    if (used < 0 || (size_t)used >= size)
        return;
    out += used;
    size -= (size_t)used;
    const char *file = forbidden();
    for (size_t i = 0; i < sizeof cures / sizeof *cures; i++)
        if (cures[i].result == result && !file) {
            snprintf(out, size, "%s", cures[i].words);
            return;
        }
    explain_absence(true, out, size);
}
