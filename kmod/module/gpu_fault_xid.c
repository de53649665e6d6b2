// SPDX-License-Identifier: GPL-2.0-only
/*
 * gpu_fault_xid - lines of NVIDIA's driver in the kernel log, without NVIDIA's driver
 *
 * One write to /dev/gpu_fault_xid is one record, which the kernel itself logs:
 * no reader can tell it from the driver's by its facility, level or text. What
 * no driver of NVIDIA's prints is refused. Written records are:
 *
 *   NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.
 *   NVRM: Xid (PCI:0000:17:00 GPU-I:05 GPU-CI:00): 94, ...
 *   NVRM: TEXT                           what comes with an XID
 *   NVRM: The NVIDIA GPU 0000:b3:00.0    one record of three lines, see below
 *   nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, ...
 *   nvidia-nvswitch0: TEXT
 *
 * A write gives EPERM without CAP_SYS_ADMIN in the initial user namespace,
 * EINVAL for what is no such record, and EAGAIN above MAX_RATE records per
 * second; then nothing was logged. The module keeps nothing: it can be unloaded
 * whenever nobody has the device open.
 */
#include <linux/capability.h>
#include <linux/ctype.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/ratelimit.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

/*
 * Bytes of a record, with its final newline. Before Linux 5.10 the log cut
 * records of 976 bytes and more (LOG_LINE_MAX in kernel/printk/printk.c).
 */
#define MAX_RECORD	972
#define MAX_RATE	1000

/* Whose it is, so that whoever cleans up takes nobody else's away. */
static char run[64];
module_param_string(run, run, sizeof(run), 0400);
MODULE_PARM_DESC(run, "the run of kubectl gpu-fault that loaded the module, if one did");

/*
 * A skip_ function moves *s past what it is named for. It returns false where
 * something else stands; *s may then be anywhere in the record.
 */
static bool skip_text(const char **s, const char *text)
{
	size_t len = strlen(text);

	if (strncmp(*s, text, len))
		return false;
	*s += len;
	return true;
}

static bool skip_decimal(const char **s, int min, int max)
{
	int n = 0;

	while (n < max && isdigit((*s)[n]))
		n++;
	*s += n;
	return n >= min;
}

static bool skip_hex(const char **s, int min, int max)
{
	int n = 0;

	while (n < max && isxdigit((*s)[n]))
		n++;
	*s += n;
	return n >= min;
}

/* 0000:17:00, and .0 if there is a function. The domain may have 8 digits. */
static bool skip_address(const char **s)
{
	if (!skip_hex(s, 4, 8) || !skip_text(s, ":") ||
	    !skip_hex(s, 2, 2) || !skip_text(s, ":"))
		return false;
	if ((**s != '0' && **s != '1') || !skip_hex(s, 2, 2))
		return false;
	if (**s != '.')
		return true;
	(*s)++;
	return **s >= '0' && **s <= '7' && skip_decimal(s, 1, 1);
}

/* " GPU-I:05", " GPU-I:05 GPU-CI:00" or nothing: a MIG instance. */
static bool skip_instance(const char **s)
{
	if (!skip_text(s, " GPU-I:"))
		return true;
	if (!skip_decimal(s, 2, 3))
		return false;
	return !skip_text(s, " GPU-CI:") || skip_decimal(s, 2, 3);
}

/* Some text up to the end of the record. */
static bool is_text(const char *s)
{
	if (!*s)
		return false;
	for (; *s; s++)
		/* isprint() alone would let Latin-1 pass, which is no ASCII. */
		if (!isascii(*s) || !isprint(*s))
			return false;
	return true;
}

/* Behind "NVRM: Xid": " (PCI:0000:17:00): 79, GPU has fallen off the bus." */
static bool is_xid_rest(const char *s)
{
	if (!skip_text(&s, " ("))
		return false;
	skip_text(&s, "PCI:"); /* drivers before R300 do not print it */
	if (!skip_address(&s) || !skip_instance(&s) || !skip_text(&s, "): "))
		return false;
	if (*s == '0' || !skip_decimal(&s, 1, 5))
		return false;
	return !*s || (skip_text(&s, ", ") && is_text(s));
}

/* Behind "SXid": " (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up" */
static bool is_sxid_rest(const char *s)
{
	return skip_text(&s, " (PCI:") && skip_address(&s) &&
	       skip_text(&s, "): ") && skip_decimal(&s, 5, 5) &&
	       skip_text(&s, ", ") && is_text(s);
}

/*
 * Behind "NVRM: The NVIDIA GPU ": what the driver prints for a GPU that does not
 * answer when it is probed, the only record of several lines.
 */
static bool is_fallen_off_rest(const char *s)
{
	return skip_address(&s) && skip_text(&s, "\nNVRM: (PCI ID: ") &&
	       skip_hex(&s, 4, 4) && skip_text(&s, ":") && skip_hex(&s, 4, 4) &&
	       skip_text(&s, ") installed in this system has\n") &&
	       skip_text(&s, "NVRM: fallen off the bus and is not responding to commands.") &&
	       !*s;
}

static bool is_gpu_record(const char *s)
{
	if (!skip_text(&s, "NVRM: "))
		return false;
	if (skip_text(&s, "Xid"))
		return is_xid_rest(s);
	return is_text(s) ||
	       (skip_text(&s, "The NVIDIA GPU ") && is_fallen_off_rest(s));
}

static bool is_switch_record(const char *s)
{
	if (!skip_text(&s, "nvidia-nvswitch") || !skip_decimal(&s, 1, 3) ||
	    !skip_text(&s, ": "))
		return false;
	if (skip_text(&s, "SXid"))
		return is_sxid_rest(s);
	return is_text(s);
}

static struct ratelimit_state rate;

static int log_record(const char *record)
{
	bool gpu = is_gpu_record(record);

	if (!gpu && !is_switch_record(record))
		return -EINVAL;
	/* Who is too fast is told so: a record is never dropped in silence. */
	if (!__ratelimit(&rate))
		return -EAGAIN;
	/*
	 * Without a level, as the driver: it gets the default one, warning. The
	 * driver also says KERN_CONT, which would glue our record to an open one of
	 * the same task: echo -n x >/dev/kmsg; echo ... >/dev/gpu_fault_xid.
	 */
	if (gpu)
		printk("%s\n", record);
	else
		printk(KERN_ERR "%s\n", record);
	return 0;
}

static int xid_open(struct inode *inode, struct file *file)
{
	return capable(CAP_SYS_ADMIN) ? 0 : -EPERM;
}

static ssize_t xid_write(struct file *file, const char __user *from, size_t len,
			 loff_t *offset)
{
	size_t length = len;
	char *record;
	int err;

	/* Again: who has opened it may have handed it on. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (len > MAX_RECORD)
		return -EINVAL;
	record = memdup_user_nul(from, len);
	if (IS_ERR(record))
		return PTR_ERR(record);
	if (length && record[length - 1] == '\n')
		record[--length] = '\0';
	/* The log adds the newline; a NUL would hide what follows it. */
	if (length + 1 > MAX_RECORD || strlen(record) != length)
		err = -EINVAL;
	else
		err = log_record(record);
	kfree(record);
	return err ? err : len;
}

static const struct file_operations xid_operations = {
	.owner	= THIS_MODULE,
	.open	= xid_open,
	.write	= xid_write,
	.llseek	= noop_llseek,
};

static struct miscdevice xid_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= KBUILD_MODNAME,
	.fops	= &xid_operations,
	.mode	= 0200,
};

static int __init xid_init(void)
{
	ratelimit_state_init(&rate, HZ, MAX_RATE);
	/* What ratelimit would say of itself would be between our records. */
	ratelimit_set_flags(&rate, RATELIMIT_MSG_ON_RELEASE);
	return misc_register(&xid_device);
}
module_init(xid_init);

static void __exit xid_exit(void)
{
	misc_deregister(&xid_device);
}
module_exit(xid_exit);

MODULE_DESCRIPTION("Lines of NVIDIA's driver in the kernel log, to test what reads them");
MODULE_AUTHOR("The authors of kubectl gpu-fault");
MODULE_VERSION("1");
MODULE_LICENSE("GPL");
