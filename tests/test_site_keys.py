"""Keys and certificates: who signs what, what is refused, and that nobody else reads a key."""

import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from proxdasa import cli
from proxdasa.sites import keys


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_from_request_to_certificate_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (("authority", "study-ca"), ("request", "charite"), ("sign", "study-ca", "charite.csr")):
        result = call("keys", *arguments)
        assert result.exit_code == 0, result.output
    shown = call("keys", "show", "charite.crt").stdout
    assert "charite.crt: charite, signed by CN=study-ca" in shown
    assert "valid" in shown
    for key in (tmp_path / "charite.key", tmp_path / "study-ca" / keys.KEY):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    card = keys.check_pair(tmp_path / "charite.crt", tmp_path / "charite.key", tmp_path / "study-ca" / keys.CERTIFICATE)
    assert card.name == "charite"


def test_a_key_is_never_replaced(tmp_path):
    keys.make_request("charite", tmp_path)
    with pytest.raises(FileExistsError, match="exists already"):
        keys.make_request("charite", tmp_path)


@pytest.mark.parametrize("name", ["", "Charite", "a.b", "-a", "a" * 64, "a/b"])
def test_names_that_sites_may_not_have(tmp_path, name):
    with pytest.raises(ValueError, match="the name of a site has"):
        keys.make_request(name, tmp_path)


def test_a_site_cannot_be_called_like_the_authority(tmp_path, monkeypatch):
    """Its key would be written where that of the authority is looked for."""
    monkeypatch.chdir(tmp_path)
    result = call("keys", "request", "authority")
    assert result.exit_code == 2
    assert "choose another name for the site" in " ".join(result.stderr.split())
    assert not [*tmp_path.iterdir()]


def test_what_is_wrong_with_a_pair(tmp_path):
    for authority in ("one", "two"):
        keys.make_authority(tmp_path / authority)
    for name in ("charite", "lmu"):
        keys.sign(tmp_path / "one", keys.make_request(name, tmp_path)[1])
    certificate, key, roots = tmp_path / "charite.crt", tmp_path / "charite.key", tmp_path / "one" / keys.CERTIFICATE
    with pytest.raises(ValueError, match="is not the certificate of the key"):
        keys.check_pair(certificate, tmp_path / "lmu.key", roots)
    with pytest.raises(ValueError, match="is not signed by an authority"):
        keys.check_pair(certificate, key, tmp_path / "two" / keys.CERTIFICATE)
    with pytest.raises(ValueError, match="not a certificate in PEM format"):
        keys.check_pair(key, key, roots)
    key.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others; run: chmod 600"):
        keys.check_pair(certificate, key, roots)


def test_a_request_for_another_name_is_not_signed(tmp_path):
    """A site could ask for the name of another, or have the certificate of the authority replaced."""
    keys.make_authority(tmp_path)
    _, request = keys.make_request("charite", tmp_path)
    before = (tmp_path / keys.CERTIFICATE).read_bytes()
    for name in ("lmu.csr", "authority.csr"):
        other = request.rename(tmp_path / name)
        with pytest.raises(ValueError, match="asks for the certificate of charite; if it is really from that site"):
            keys.sign(tmp_path, other)
        other.rename(request)
    assert (tmp_path / keys.CERTIFICATE).read_bytes() == before


def test_only_the_name_and_the_key_of_a_request_are_signed(tmp_path):
    keys.make_authority(tmp_path)
    title = [(NameOID.COMMON_NAME, "eve"), (NameOID.COMMON_NAME, "charite"), (NameOID.ORGANIZATION_NAME, "Charité")]
    subject = x509.Name([x509.NameAttribute(*each) for each in title])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    (tmp_path / "eve.csr").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made = x509.load_pem_x509_certificate(keys.sign(tmp_path, tmp_path / "eve.csr").read_bytes())
    assert made.subject.rfc4514_string() == "CN=eve"


def test_a_certificate_of_several_names_is_that_of_no_site(tmp_path, monkeypatch):
    """Neighbours refuse it, so it must not pass the checks of the site itself."""
    keys.make_authority(tmp_path)
    several = x509.SubjectAlternativeName([x509.DNSName("charite"), x509.DNSName("charite.example.org")])
    private, request = keys.make_request("charite", tmp_path)
    monkeypatch.setattr(x509, "SubjectAlternativeName", lambda _: several)
    certificate = keys.sign(tmp_path, request)
    monkeypatch.undo()
    card = keys.check_pair(certificate, private, tmp_path / keys.CERTIFICATE)
    assert card.name == "charite, charite.example.org"


def test_an_authority_at_its_end(tmp_path, monkeypatch):
    """Its last certificates are valid as long as it is."""
    _, request = keys.make_request("charite", tmp_path)
    for hours, name in ((2, "young"), (-0.1, "old")):
        monkeypatch.setattr(keys, "AUTHORITY_DAYS", hours / 24)
        keys.make_authority(tmp_path / name)
    made = keys.read_card(keys.sign(tmp_path / "young", request))
    assert made.expires == keys.read_card(tmp_path / "young" / keys.CERTIFICATE).expires
    assert not made.expired
    with pytest.raises(ValueError, match=r"expired on .*; make a new authority for all sites"):
        keys.sign(tmp_path / "old", request)


def test_an_authority_whose_files_do_not_belong_together(tmp_path):
    for name in ("one", "two"):
        keys.make_authority(tmp_path / name)
    _, request = keys.make_request("charite", tmp_path)
    (tmp_path / "one" / keys.KEY).unlink()
    with pytest.raises(FileExistsError, match=r"authority\.crt exists already"):
        keys.make_authority(tmp_path / "one")
    assert not (tmp_path / "one" / keys.KEY).exists()
    (tmp_path / "two" / keys.KEY).rename(tmp_path / "one" / keys.KEY)
    with pytest.raises(ValueError, match="do not belong together; were two authorities made"):
        keys.sign(tmp_path / "one", request)


def test_several_authorities_in_one_file(tmp_path):
    """An organisation may have its own; the file of authorities then holds several certificates."""
    for authority, name in (("one", "charite"), ("two", "lmu")):
        keys.make_authority(tmp_path / authority)
        keys.sign(tmp_path / authority, keys.make_request(name, tmp_path)[1])
    both = tmp_path / "both.crt"
    both.write_bytes(b"".join((tmp_path / each / keys.CERTIFICATE).read_bytes() for each in ("one", "two")))
    for name in ("charite", "lmu"):
        assert keys.check_pair(tmp_path / f"{name}.crt", tmp_path / f"{name}.key", both).name == name


def test_a_request_that_was_tampered_with(tmp_path):
    keys.make_authority(tmp_path / "one")
    _, request = keys.make_request("charite", tmp_path)
    request.write_bytes(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    with pytest.raises(ValueError, match=r"not a request \(\.csr\) in PEM format"):
        keys.sign(tmp_path / "one", request)
